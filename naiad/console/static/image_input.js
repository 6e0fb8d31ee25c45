// An image becomes a tensor in the browser: size, layout, order of channels, scaling, mean and
// standard deviation. It calls back with {shape, values}.

import {h} from "./dom.js";

const IMAGENET = {mean: "0.485, 0.456, 0.406", std: "0.229, 0.224, 0.225"};
const DEFAULT_SIDE = 224, MAX_SIDE = 4096;
const SCALES = [["255", "0 to 255"], ["1", "0 to 1"], ["-1", "-1 to 1"]];

// Returns {layout, channels, height, width} if the shape can be that of an image, else null.
export function imageLayout(input) {
  if (!["FP16", "BF16", "FP32", "FP64", "UINT8", "INT8", "INT32"].includes(input.datatype)) return null;
  const sizes = input.shape.slice(-3), isChannels = size => size === 1 || size === 3 || size === 4;
  if (sizes.length < 3 || input.shape.slice(0, -3).some(size => size > 1)) return null;
  const [first, , last] = sizes;
  const layout = isChannels(first) ? "NCHW" : isChannels(last) ? "NHWC" : first < 0 ? "NCHW" : last < 0 ? "NHWC" : null;
  if (!layout) return null;
  const [channels, height, width] = layout === "NCHW" ? sizes : [sizes[2], sizes[0], sizes[1]];
  if ([height, width].some(size => size >= 0 && size < 4)) return null;
  return {layout, channels: channels > 0 ? channels : 3, height, width};
}

export function imageInput(input, onChange) {
  const guess = imageLayout(input);
  const side = size => size > 0 ? size : DEFAULT_SIDE;
  const number = (title, value, isFixed) => h("input", {type: "number", min: "1", max: String(MAX_SIDE), value: String(value), disabled: isFixed, "aria-label": `${title} of the image for ${input.name}`});
  const choose = (values, value) => h("select", null, values.map(([id, text]) => h("option", {value: id, selected: id === value}, text)));
  const width = number("Width", side(guess.width), guess.width > 0), height = number("Height", side(guess.height), guess.height > 0);
  const layout = choose([["NCHW", "NCHW: channels first"], ["NHWC", "NHWC: channels last"]], guess.layout);
  const colours = choose(guess.channels === 1 ? [["L", "Grey"]] : guess.channels === 4 ? [["RGBA", "RGBA"]] : [["RGB", "RGB"], ["BGR", "BGR"]], "");
  const fit = choose([["stretch", "Stretch"], ["crop", "Crop the centre"], ["pad", "Pad with black"]], "stretch");
  const scale = choose(SCALES, /INT/.test(input.datatype) ? "255" : "1");
  const mean = h("input", {placeholder: "0", spellcheck: "false"}), std = h("input", {placeholder: "1", spellcheck: "false"});
  const preview = h("canvas", {class: "preview", width: "1", height: "1", role: "img", "aria-label": `The image for ${input.name}, as the model sees it`, hidden: true});
  const note = h("p", {class: "hint", role: "status"}, "Choose an image or drop one here. It stays in this page until you send it.");
  const file = h("input", {type: "file", accept: "image/*", "aria-label": `Image for ${input.name}`, onchange: () => open(file.files[0])});
  let picture = null;

  async function open(chosen) {
    if (!chosen) return;
    try {
      picture = await createImageBitmap(chosen);
      note.textContent = `${chosen.name}: ${picture.width} × ${picture.height}`;
      update();
    } catch {
      note.textContent = `${chosen.name} is not an image that this browser can read.`;
    }
  }

  function update() {
    if (!picture) return;
    const size = [width, height].map(field => Math.min(MAX_SIDE, Math.max(1, Math.floor(Number(field.value)) || 1)));
    preview.width = size[0];
    preview.height = size[1];
    preview.hidden = false;
    const brush = preview.getContext("2d", {willReadFrequently: true});
    brush.fillRect(0, 0, ...size);
    brush.imageSmoothingQuality = "high";
    brush.drawImage(picture, ...placement(picture, size, fit.value));
    const pixels = brush.getImageData(0, 0, ...size).data;
    const rule = {layout: layout.value, colours: colours.value, scale: scale.value, mean: list(mean.value, 0), std: list(std.value, 1)};
    const sizes = rule.layout === "NCHW" ? [guess.channels, size[1], size[0]] : [size[1], size[0], guess.channels];
    onChange({shape: [...input.shape.slice(0, -3).map(() => 1), ...sizes], values: tensorOf(pixels, size, rule, /INT/.test(input.datatype))});
  }

  const presets = h("button", {type: "button", class: "small", onclick: () => { mean.value = IMAGENET.mean; std.value = IMAGENET.std; scale.value = "1"; update(); }}, "ImageNet's mean and deviation");
  const label = (title, field) => h("label", null, title, field);
  const box = h("div", {class: "drop"}, h("div", {class: "row"}, file), note, preview,
    h("div", {class: "columns four"}, label("Width", width), label("Height", height), label("Layout", layout), label("Fit", fit),
      label("Colours", colours), label("Scaling", scale), label("Mean", mean), label("Standard deviation", std)),
    guess.channels === 3 ? presets : null);
  box.addEventListener("change", event => { if (event.target !== file) update(); });
  box.addEventListener("dragover", event => event.preventDefault());
  box.addEventListener("drop", event => { event.preventDefault(); open(event.dataTransfer.files[0]); });
  return box;
}

// The arguments of drawImage behind the image.
function placement(picture, [width, height], fit) {
  const scales = [width / picture.width, height / picture.height];
  if (fit === "stretch") return [0, 0, width, height];
  const scale = fit === "crop" ? Math.max(...scales) : Math.min(...scales);
  const size = [picture.width * scale, picture.height * scale];
  return [(width - size[0]) / 2, (height - size[1]) / 2, ...size];
}

const list = (text, otherwise) => {
  const values = text.split(/[\s,]+/).filter(Boolean).map(Number);
  return channel => values.length ? values[Math.min(channel, values.length - 1)] : otherwise;
};

// `pixels` are RGBA from 0 to 255, row by row.
export function tensorOf(pixels, [width, height], {layout, colours, scale, mean, std}, isWhole) {
  const area = width * height, order = {L: [0], RGB: [0, 1, 2], BGR: [2, 1, 0], RGBA: [0, 1, 2, 3]}[colours];
  const values = new Array(area * order.length);
  for (let pixel = 0; pixel < area; pixel++) {
    const at = pixel * 4;
    for (let channel = 0; channel < order.length; channel++) {
      const level = colours === "L" ? 0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2] : pixels[at + order[channel]];
      const scaled = scale === "255" ? level : scale === "1" ? level / 255 : level / 127.5 - 1;
      const value = (scaled - mean(channel)) / std(channel);
      values[layout === "NCHW" ? channel * area + pixel : pixel * order.length + channel] = isWhole ? Math.round(value) : value;
    }
  }
  return values;
}
