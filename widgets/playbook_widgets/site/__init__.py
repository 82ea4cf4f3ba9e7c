"""What turns the chapters into the static site: formulas, source pages, page scripts, accessibility."""
