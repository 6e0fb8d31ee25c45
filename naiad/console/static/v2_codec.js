// Requests and responses of the v2 protocol, as JSON or with binary tensors. Pure functions.
// A tensor is {name, datatype, shape, data}: `data` is an array of values, or `bytes` holds them
// as they are sent.

const WIDTH = {BOOL: 1, INT8: 1, UINT8: 1, INT16: 2, UINT16: 2, FP16: 2, BF16: 2, INT32: 4, UINT32: 4, FP32: 4, INT64: 8, UINT64: 8, FP64: 8};
const NPY_TYPES = {"|b1": "BOOL", "|i1": "INT8", "|u1": "UINT8", "<i2": "INT16", "<u2": "UINT16", "<f2": "FP16", "<i4": "INT32", "<u4": "UINT32",
  "<f4": "FP32", "<i8": "INT64", "<u8": "UINT64", "<f8": "FP64"};
// JSON has no values of these types: Triton's protocol wants them binary.
export const needsBinary = datatype => datatype === "FP16" || datatype === "BF16";
export const width = datatype => WIDTH[datatype] ?? 0;

const ACCESS = {
  BOOL: [(view, at) => view.getUint8(at) !== 0, (view, at, value) => view.setUint8(at, value ? 1 : 0)],
  INT8: [(view, at) => view.getInt8(at), (view, at, value) => view.setInt8(at, value)],
  UINT8: [(view, at) => view.getUint8(at), (view, at, value) => view.setUint8(at, value)],
  INT16: [(view, at) => view.getInt16(at, true), (view, at, value) => view.setInt16(at, value, true)],
  UINT16: [(view, at) => view.getUint16(at, true), (view, at, value) => view.setUint16(at, value, true)],
  INT32: [(view, at) => view.getInt32(at, true), (view, at, value) => view.setInt32(at, value, true)],
  UINT32: [(view, at) => view.getUint32(at, true), (view, at, value) => view.setUint32(at, value, true)],
  INT64: [(view, at) => Number(view.getBigInt64(at, true)), (view, at, value) => view.setBigInt64(at, BigInt(value), true)],
  UINT64: [(view, at) => Number(view.getBigUint64(at, true)), (view, at, value) => view.setBigUint64(at, BigInt(value), true)],
  FP32: [(view, at) => view.getFloat32(at, true), (view, at, value) => view.setFloat32(at, value, true)],
  FP64: [(view, at) => view.getFloat64(at, true), (view, at, value) => view.setFloat64(at, value, true)],
  FP16: [(view, at) => halfToNumber(view.getUint16(at, true)), (view, at, value) => view.setUint16(at, numberToHalf(value), true)],
  BF16: [(view, at) => bfloatToNumber(view.getUint16(at, true)), (view, at, value) => view.setUint16(at, numberToBfloat(value), true)],
};
const scratch = new DataView(new ArrayBuffer(4));

function halfToNumber(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// Rounds to the nearest value, and to the even one of two that are equally near.
function numberToHalf(value) {
  const size = Math.abs(value), sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(-14, Math.floor(Math.log2(size || 2 ** -15)));
  const steps = size / 2 ** (exponent - 10), low = Math.floor(steps), rest = steps - low;
  const rounded = low + (rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? 1 : 0);
  return sign | (rounded < 1024 && exponent === -14 ? rounded : ((exponent + 15) << 10) + rounded - 1024);
}

function bfloatToNumber(bits) {
  scratch.setUint32(0, bits << 16);
  return scratch.getFloat32(0);
}

function numberToBfloat(value) {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0);
  return Number.isNaN(value) ? 0x7fc0 : (bits + 0x7fff + (bits >>> 16 & 1)) >>> 16;
}

export function encodeValues(datatype, values) {
  if (datatype === "BYTES") return encodeStrings(values.map(value => new TextEncoder().encode(String(value))));
  const bytes = new Uint8Array(values.length * WIDTH[datatype]), view = new DataView(bytes.buffer), [, set] = ACCESS[datatype];
  values.forEach((value, index) => set(view, index * WIDTH[datatype], value));
  return bytes;
}

// Each string has its length in four bytes before it.
export function encodeStrings(strings) {
  const bytes = new Uint8Array(strings.reduce((sum, part) => sum + 4 + part.length, 0)), view = new DataView(bytes.buffer);
  let offset = 0;
  for (const part of strings) {
    view.setUint32(offset, part.length, true);
    bytes.set(part, offset + 4);
    offset += 4 + part.length;
  }
  return bytes;
}

export function decodeValues(datatype, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), values = [];
  if (datatype === "BYTES") {
    for (let offset = 0; offset + 4 <= bytes.length;) {
      const size = view.getUint32(offset, true);
      values.push(new TextDecoder().decode(bytes.subarray(offset + 4, offset + 4 + size)));
      offset += 4 + size;
    }
    return values;
  }
  const [read] = ACCESS[datatype];
  for (let offset = 0; offset < bytes.length; offset += WIDTH[datatype]) values.push(read(view, offset));
  return values;
}

// Returns {body, headers, headerLength}: JSON where every tensor can be JSON, else JSON and bytes.
export function encodeRequest(inputs, wantsBinary) {
  const parts = [], head = {inputs: inputs.map(({name, datatype, shape, data, bytes}) => {
    if (!bytes && !needsBinary(datatype)) return {name, datatype, shape, data};
    const content = bytes ?? encodeValues(datatype, data);
    parts.push(content);
    return {name, datatype, shape, parameters: {binary_data_size: content.length}};
  })};
  if (wantsBinary) head.parameters = {binary_data_output: true};
  const json = JSON.stringify(head);
  if (!parts.length) return {body: json, headers: {"Content-Type": "application/json"}, headerLength: null};
  const start = new TextEncoder().encode(json);
  return {body: new Blob([start, ...parts]), headerLength: start.length,
    headers: {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(start.length)}};
}

export async function decodeResponse(response) {
  const bytes = new Uint8Array(await response.arrayBuffer());
  const length = Number(response.headers.get("inference-header-content-length")) || bytes.length;
  const decoded = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
  let offset = length;
  for (const output of decoded.outputs ?? []) {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) continue;
    output.data = decodeValues(output.datatype, bytes.subarray(offset, offset + size));
    offset += size;
  }
  return decoded;
}

// Reads a file of numpy.save: {datatype, shape, bytes}. Throws an Error for what it cannot be.
export function decodeNpy(bytes) {
  if (String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw new Error("the file is not of numpy.save");
  const view = new DataView(bytes.buffer, bytes.byteOffset), isLong = bytes[6] > 1;
  const start = isLong ? 12 : 10, length = isLong ? view.getUint32(8, true) : view.getUint16(8, true);
  const text = new TextDecoder("latin1").decode(bytes.subarray(start, start + length));
  const type = /'descr':\s*'([^']+)'/.exec(text)?.[1], shape = /'shape':\s*\(([^)]*)\)/.exec(text)?.[1];
  if (!NPY_TYPES[type]) throw new Error(`the array has the type '${type ?? "?"}', which is not one that models read`);
  if (/'fortran_order':\s*True/.test(text)) throw new Error("the array is in Fortran order; save np.ascontiguousarray(array)");
  return {datatype: NPY_TYPES[type], shape: shape.split(",").map(part => part.trim()).filter(Boolean).map(Number), bytes: bytes.subarray(start + length)};
}
