"""Studies: each module measures one property of Headwaiter."""
