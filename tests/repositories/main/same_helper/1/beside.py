BESIDE = "the other one"
