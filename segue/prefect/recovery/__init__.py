"""Recovery of runs whose parent is dead: looks at stores, when they are made, and who watches that they go on."""
