"""What people pull: proven images, and what is known of them."""
