"""Reports about facts: the nightly check of new releases, the page of compatibility, the page of broken pairs."""
