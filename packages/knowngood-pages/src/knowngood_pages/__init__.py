"""Pages for people, rendered from what the other distributions know: `docs/`, parts of README.md, and the site."""
