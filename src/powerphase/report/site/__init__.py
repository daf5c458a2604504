"""A static site from result rows: pages that a browser opens without a server or a network."""
