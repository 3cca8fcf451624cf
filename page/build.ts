/**
 * Builds the page and the reference of the API into dist/page: each file compressed with gzip, under the name by which
 * the server finds it. Part of `npm ci` (`prepare`) and of `npm run build`. Copies the last build if nothing that it
 * was made from has changed. Skips with one line if Vite is not installed, as with `--omit=dev`.
 */
import { createHash } from 'node:crypto';
import { existsSync, globSync } from 'node:fs';
import { cp, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { gzipSync } from 'node:zlib';
import { referenceHtml } from './reference/html.ts';
import { readReference } from './reference/model.ts';
import { referenceText } from './reference/text.ts';

const ROOT = path.resolve(import.meta.dirname, '..');
const TO = path.join(ROOT, 'dist/page');

/** The built page is kept here, under a digest of all that it is made from, also when `dist` is removed. */
const KEPT = path.join(ROOT, 'node_modules/.cache/page');
/** What the page is made from, besides packages, whose versions are in package-lock.json. */
const INPUTS = ['{page,src,gen/es,gen/page,gen/proto}/**/*.*', 'package.json', 'package-lock.json', 'tsconfig.json'];

const kept = path.join(KEPT, await digestOfInputs());
if (existsSync(kept)) {
  await publish();
  process.stdout.write('The page: unchanged\n');
} else {
  // Also in tests, which have another environment: they must see the page that people see.
  process.env.NODE_ENV = 'production';
  const vite = await import('vite').catch(() => undefined);
  if (vite === undefined) process.stdout.write('The page is not built: Vite is not installed.\n');
  else await build(vite.build);
}

async function digestOfInputs(): Promise<string> {
  const digest = createHash('sha256').update(process.version);
  for (const file of globSync(INPUTS, { cwd: ROOT }).sort()) {
    const content = await readFile(path.join(ROOT, file));
    digest.update(`${file}\0${content.length}\0`).update(content);
  }
  return digest.digest('hex');
}

async function build(viteBuild: Build): Promise<void> {
  const began = performance.now();
  const { output } = await bundle(viteBuild, 'index.html');
  const to = `${KEPT}-${process.pid}`;
  let total = 0;
  for (const file of output) total += await pack(to, file.fileName, contentOf(file, output));
  const style = output.find(({ fileName }) => /^assets\/style-.*\.css$/.test(fileName))?.fileName;
  await pack(to, 'file/index.html', await filePage(viteBuild));
  await packReference(to, style === undefined ? [] : [style]);
  await rm(KEPT, { recursive: true, force: true });
  await mkdir(KEPT, { recursive: true });
  await rename(to, kept);
  await publish();
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  process.stdout.write(`The page: ${output.length} files, ${Math.ceil(total / 1024)} KiB gzipped, ${seconds} s\n`);
}

/** Copies the kept files to the place from which the server reads them. */
async function publish(): Promise<void> {
  // Only their names change from build to build. Compiled sources of the page may lie beside them.
  await rm(path.join(TO, 'assets'), { recursive: true, force: true });
  await cp(kept, TO, { recursive: true });
}

type Output = Awaited<ReturnType<typeof bundle>>['output'];

/**
 * Returns the content of a built file. The document begins with the first script, which Vite does not know as a part of
 * it.
 */
function contentOf(file: Output[number], output: Output): string | Uint8Array {
  if (file.type === 'chunk') return file.code;
  if (file.fileName !== 'index.html') return file.source;
  const early = output.find((each) => each.type === 'chunk' && each.isEntry && each.name === 'early');
  if (early === undefined) throw new Error('Vite returned no first script');
  const html = String(file.source);
  return html.replace(
    '<script ',
    `<script type="module" async crossorigin src="/${early.fileName}"></script>\n    <script `,
  );
}

/** Writes a file in its compressed form. Returns the number of bytes. */
async function pack(to: string, name: string, content: string | Uint8Array): Promise<number> {
  const packed = gzipSync(content, { level: 9 });
  const target = path.join(to, `${name}.gz`);
  await mkdir(path.dirname(target), { recursive: true });
  await writeFile(target, packed);
  return packed.length;
}

/** Writes the reference of the API, as a page and as text. */
async function packReference(to: string, pageStyles: readonly string[]): Promise<void> {
  const reference = await readReference();
  const style = await readFile(path.join(import.meta.dirname, 'reference/style.css'));
  const styleName = `assets/reference-${createHash('sha256').update(style).digest('hex').slice(0, 8)}.css`;
  const styles = [...pageStyles, styleName].map((name) => `/${name}`);
  await pack(to, styleName, style);
  await pack(to, 'docs.html', referenceHtml(reference, styles));
  await pack(to, 'docs.txt', referenceText(reference));
}

/** Returns the page of `anabranch page`: one document with its script and style, and a place for what is shown. */
async function filePage(build: Build): Promise<string> {
  const { output } = await bundle(build, 'file.html');
  const script = output.find((file) => file.type === 'chunk');
  const style = output.find((file) => file.type === 'asset' && file.fileName.endsWith('.css'));
  if (script?.type !== 'chunk' || style?.type !== 'asset') throw new Error('Vite returned no script or no style');
  const code = script.code.replaceAll('</script', '<\\/script');
  const css = String(style.source);
  const hash = (text: string) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
  const policy = `default-src 'none'; script-src ${hash(code)}; style-src ${hash(css)}; img-src blob:; media-src blob:; base-uri 'none'; form-action 'none'`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Anabranch</title>
<style>${css}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript.</noscript>
<!-- recorded -->
<script type="module">${code}</script>
</body>
</html>
`;
}

type Build = typeof import('vite').build;

async function bundle(build: Build, input: string) {
  const built = await build({
    root: import.meta.dirname,
    configFile: false,
    logLevel: 'warn',
    // Descriptors without the validation rules, which only the server uses.
    resolve: { alias: [{ find: /^(?:\.\.\/)+gen\/es\/anabranch\//, replacement: `${ROOT}/gen/page/anabranch/` }] },
    oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
    build: {
      target: 'es2023',
      write: false,
      // The scripts are few, and know no others that they must load first.
      modulePreload: false,
      assetsInlineLimit: 0,
      // Each further file costs more time than its bytes. The page in a file is one script and one style.
      cssCodeSplit: false,
      rolldownOptions: {
        input: {
          index: path.join(import.meta.dirname, input),
          ...(input === 'index.html' ? { early: path.join(import.meta.dirname, 'src/early.ts') } : {}),
        },
        output: input === 'index.html' ? {} : { codeSplitting: false },
      },
    },
  });
  if (Array.isArray(built) || !('output' in built)) throw new Error('Vite returned no bundle');
  return built;
}
