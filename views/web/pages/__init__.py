"""The pages: what each shows, as structures that its template fills in."""
