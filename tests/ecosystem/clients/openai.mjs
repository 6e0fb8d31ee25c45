import OpenAI from "openai";
import assert from "node:assert";

const client = new OpenAI({baseURL: `http://${process.env.NAIAD_HTTP}/v1`, apiKey: "none"});
const request = {model: "tiny", messages: [{role: "user", content: "Hello"}], max_tokens: 5, temperature: 0};
const whole = await client.chat.completions.create(request);
let text = "";
for await (const chunk of await client.chat.completions.create({...request, stream: true})) text += chunk.choices[0]?.delta?.content ?? "";
assert.equal(text, whole.choices[0].message.content);
