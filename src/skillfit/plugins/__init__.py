"""Optional parts. The core never imports them: it finds them by name (`skillfit.extensions`)."""
