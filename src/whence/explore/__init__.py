"""``whence explore``: a local web application that shows mechanisms, a pretrained model and results."""
