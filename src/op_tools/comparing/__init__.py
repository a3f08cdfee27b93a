"""Is a result right? References, errors, what each op may do, and the sentence that says so."""
