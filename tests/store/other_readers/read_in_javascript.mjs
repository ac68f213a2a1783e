// Reads arrays with zarrita.js: node read_in_javascript.mjs MODULES OUT < ARRAYS
// MODULES is where its packages were installed. The rest is as in read_in_python.py.
import { readFile, writeFile } from "node:fs/promises";
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const [modules, out] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${modules}/node_modules/${name}`));
const zarr = await load("zarrita/dist/src/index.js");
const { default: FileSystemStore } = await load("@zarrita/storage/dist/src/fs.js");
const { version } = JSON.parse(await readFile(`${modules}/node_modules/zarrita/package.json`));

const arrays = [];
for (const [number, [store, path]] of JSON.parse(await text(process.stdin)).entries()) {
  try {
    const root = zarr.root(new FileSystemStore(store));
    const array = await zarr.open.v3(root.resolve(path), { kind: "array" });
    const { data, shape, stride } = await zarr.get(array);
    const bytes = data.buffer ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : Uint8Array.from(data);
    await writeFile(`${out}/${number}`, bytes);
    arrays.push({ dtype: array.dtype, shape, stride });
  } catch (error) {
    arrays.push({ error: `${error.name}: ${error.message}` });
  }
}
console.log(JSON.stringify({ version, arrays }));
