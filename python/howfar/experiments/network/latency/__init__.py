"""Response times at fixed rates: what each path answers, how late, and from which rate it no longer keeps up."""
