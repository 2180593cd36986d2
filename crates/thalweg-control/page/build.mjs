// Builds the page: `node build.mjs`. With `--verify` it builds into a temporary folder and fails where dist/ differs;
// with `--test` it runs the tests in src/*.test.ts.
//
// dist/ is committed, so that a build of the program needs no npm. No file in it depends on the time or the machine.

import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const ROOT = dirname(fileURLToPath(import.meta.url));
const DIST = join(ROOT, "dist");
const FILES = ["icon.svg", "index.html", "page.css", "page.js"];

/** Licences of the libraries in the bundle, which must go where it goes. */
function licences() {
  const texts = ["preact", "uplot"].map((name) => {
    const text = readFileSync(join(ROOT, "node_modules", name, "LICENSE"), "utf8").trim();
    return `${name}\n\n${text}`;
  });
  return `/*!\nThis file contains the following libraries.\n\n${texts.join("\n\n")}\n*/`;
}

/** Writes the page into a folder. */
async function build(folder) {
  mkdirSync(folder, { recursive: true });
  await esbuild.build({
    absWorkingDir: ROOT,
    entryPoints: { page: "src/main.tsx" },
    outdir: folder,
    bundle: true,
    minify: true,
    format: "esm",
    target: ["es2022", "chrome123", "firefox121", "safari17.5"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    banner: { js: licences() },
    logLevel: "warning",
  });
  for (const name of ["icon.svg", "index.html"]) copyFileSync(join(ROOT, "src", name), join(folder, name));
}

/** Runs a function with a temporary folder, and removes the folder. */
async function withFolder(use) {
  const folder = mkdtempSync(join(tmpdir(), "thalweg-page-"));
  try {
    return await use(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Returns the names of the committed files that differ from what the sources give. */
async function differing() {
  return withFolder(async (folder) => {
    await build(folder);
    return FILES.filter((name) => {
      try {
        return !readFileSync(join(folder, name)).equals(readFileSync(join(DIST, name)));
      } catch {
        return true;
      }
    });
  });
}

/** Bundles the tests for Node and runs them. Returns the exit code. */
async function test() {
  return withFolder(async (folder) => {
    const names = readdirSync(join(ROOT, "src")).filter((name) => name.endsWith(".test.ts"));
    await esbuild.build({
      absWorkingDir: ROOT,
      entryPoints: names.map((name) => join("src", name)),
      outdir: folder,
      outExtension: { ".js": ".mjs" },
      bundle: true,
      platform: "node",
      format: "esm",
      target: "node20",
      logLevel: "warning",
    });
    const files = names.map((name) => join(folder, name.replace(/\.ts$/, ".mjs")));
    return spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1;
  });
}

if (process.argv.includes("--test")) {
  process.exitCode = await test();
} else if (process.argv.includes("--verify")) {
  const names = await differing();
  if (names.length > 0) {
    console.error(`dist/ differs from the sources in ${names.join(", ")}: run \`npm run build\` and commit dist/`);
    process.exitCode = 1;
  }
} else {
  await build(DIST);
}
