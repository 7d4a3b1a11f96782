"""Work pools and job templates, by platform."""
