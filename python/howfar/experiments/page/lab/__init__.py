"""A real application in the laboratory: PHP-FPM (`php_fpm.py`) with pages (`php/`) that query the environment's servers."""
