"""Reports as one HTML file: no scripts or styles from elsewhere, charts as inline SVG, light and
dark."""
