"""Tables, figures and pages; all of it from result rows."""
