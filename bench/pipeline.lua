-- wrk: the same JSON inference again and again, over kept-alive connections; the model is $WRK_MODEL, its input X of 16 floats.
wrk.method = "POST"
wrk.path = "/v2/models/" .. os.getenv("WRK_MODEL") .. "/infer"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"inputs":[{"name":"X","datatype":"FP32","shape":[1,16],"data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}]}'
