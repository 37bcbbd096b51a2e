"""The list of normative statements, and the report that says where each is kept and where it is proven."""
