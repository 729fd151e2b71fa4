"""The speeches studies: encoder, decoder and ALiBi."""
