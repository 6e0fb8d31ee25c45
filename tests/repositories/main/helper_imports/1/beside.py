BESIDE = "beside model.py"
