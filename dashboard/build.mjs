// Builds the dashboard into the folder that is named: an index.html and, beside it, assets whose
// names carry a hash of what is in them, each also compressed.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const target = process.argv[2];
if (!target) throw new Error("usage: node build.mjs FOLDER");
const stage = `${target}.new`;
rmSync(stage, { recursive: true, force: true });
mkdirSync(`${stage}/assets`, { recursive: true });

const write = (name, text) => {
  const data = Buffer.from(text);
  const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } };
  writeFileSync(`${stage}/${name}`, data);
  writeFileSync(`${stage}/${name}.gz`, gzipSync(data, { level: 9 }));
  writeFileSync(`${stage}/${name}.br`, brotliCompressSync(data, quality));
};

const built = await build({
  entryPoints: ["src/main.tsx"],
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "eof",
  charset: "utf8",
  outdir: stage,
  write: false,
});
const names = {};
const asset = (name, text) => {
  const [stem, ending] = name.split(".");
  const hash = createHash("sha256").update(text).digest("hex").slice(0, 10);
  names[name] = `${stem}-${hash}.${ending}`;
  write(`assets/${names[name]}`, text);
};
for (const file of built.outputFiles) asset(file.path.split("/").at(-1), file.contents);
asset("icon.svg", readFileSync("src/icon.svg"));
const page = readFileSync("index.html", "utf8");
write("index.html", page.replace(/\{([a-z.]+)\}/g, (_, name) => names[name]));
rmSync(target, { recursive: true, force: true });
renameSync(stage, target);
