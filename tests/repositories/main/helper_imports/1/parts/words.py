INNER = "in a package"
