"""Work pools on Amazon ECS: base job templates and permissions."""
