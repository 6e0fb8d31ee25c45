# genai-perf runs perf_analyzer from the PATH, which is ours.
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
common=(--tokenizer "$NAIAD_CHECKPOINT" --request-count 6 --concurrency 2 --synthetic-input-tokens-mean 10
    --output-tokens-mean 60 --artifact-dir "$out")
genai-perf profile -m tiny --endpoint-type chat --streaming -u "$NAIAD_HTTP" "${common[@]}"
genai-perf profile -m tiny --endpoint-type chat -u "$NAIAD_HTTP" "${common[@]}"
genai-perf profile -m tiny_vllm --endpoint-type kserve --backend vllm --streaming -u "$NAIAD_GRPC" "${common[@]}"
