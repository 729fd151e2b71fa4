"""``whence explore``: a local web application that shows mechanisms and results."""
