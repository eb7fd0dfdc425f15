"""The site: static pages made from cells, evidence, facts and incidents, and `catalog.json` for programs."""
