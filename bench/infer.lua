-- wrk: the same JSON inference of add_sub again and again, over kept-alive connections.
wrk.method = "POST"
wrk.path = "/v2/models/add_sub/infer"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,16],"data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]},'
  .. '{"name":"INPUT1","datatype":"FP32","shape":[1,16],"data":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}'
