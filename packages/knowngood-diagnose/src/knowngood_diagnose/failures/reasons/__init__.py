"""Why a program failed, by the values, shapes, settings and lines of code that its log has beside the error."""
