import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { gunzipSync, gzipSync } from 'node:zlib';
import type { HttpRequest, HttpResponse } from './listen/http.ts';

/** Serves the page for browsers: the files that `page/build.ts` has compressed, by their paths. */

/** `read`: the page hides operations. RPCs stay open to every client. */
export type PageMode = 'read' | 'write';

interface PageFile {
  readonly type: string;
  readonly etag: string;
  readonly gzip: Buffer;
  /** The name contains a hash of the content. */
  readonly immutable: boolean;
}

/** Views of the page. The page itself reads the rest of the address. */
const VIEW = /^\/(?:(?:runs|trees|rollouts|compare|search)(?:\/.*)?)?$/;
/** Other files of the page. */
const FILE = /^(?:assets\/[\w.-]+|docs\.(?:html|txt))$/;
const INDEX = 'index.html';
/** Next to the sources, and next to the compiled files. */
const FOLDERS = ['../dist/page', '../page'].map((each) => path.join(import.meta.dirname, each));

const TYPES: Readonly<Record<string, string>> = {
  '.css': 'text/css; charset=utf-8',
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain; charset=utf-8',
};

const SAFE = {
  'x-content-type-options': 'nosniff',
  'content-security-policy':
    "default-src 'self'; img-src 'self' blob:; media-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
} as const;

const NOT_BUILT = `The page of this server is not built. To build it, run in the folder of Anabranch:

  npm install && npm run build:page

Then load this address again. RPCs work without the page.
`;

/** Returns a function that serves requests for the page, and returns false for other paths and methods. */
export function servePage(
  mode: PageMode,
  folders: readonly string[] = FOLDERS,
): (request: HttpRequest, response: HttpResponse) => boolean {
  let files: ReadonlyMap<string, PageFile> | undefined;
  return (request, response) => {
    if (request.method !== 'GET' && request.method !== 'HEAD') return false;
    const [wanted = ''] = (request.url ?? '').split('?', 1);
    const name = VIEW.test(wanted) ? INDEX : wanted === '/docs' ? 'docs.html' : wanted.slice(1);
    if (name !== INDEX && !FILE.test(name)) return false;
    // Read at the first request. Until the page is built, every request looks again.
    files ??= readBuiltFiles(folders, mode);
    const file = files?.get(name);
    if (file !== undefined) {
      sendFile(request, response, file);
    } else if (name === INDEX) {
      send(response, 404, { 'content-type': 'text/plain', 'cache-control': 'no-store' }, Buffer.from(NOT_BUILT));
    } else {
      return false;
    }
    return true;
  };
}

function sendFile({ method, headers }: HttpRequest, response: HttpResponse, file: PageFile): void {
  const { type, etag, gzip, immutable } = file;
  const common = {
    etag,
    vary: 'accept-encoding',
    'cache-control': immutable ? 'public, max-age=31536000, immutable' : 'no-cache',
  };
  if (headers['if-none-match']?.includes(etag)) {
    send(response, 304, common);
    return;
  }
  const packed = /\bgzip\b/.test(String(headers['accept-encoding'] ?? ''));
  const bytes = packed ? gzip : gunzipSync(gzip);
  const length = `${bytes.length}`;
  const encoding = packed ? { 'content-encoding': 'gzip' } : {};
  const head = { ...common, ...encoding, 'content-type': type, 'content-length': length };
  send(response, 200, head, method === 'HEAD' ? undefined : bytes);
}

function send(
  response: HttpResponse,
  status: number,
  headers: Readonly<Record<string, string>>,
  body: Buffer = Buffer.alloc(0),
): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries({ ...SAFE, ...headers })) response.setHeader(name, value);
  if ('stream' in response) response.end(body);
  else response.end(body);
}

/** Returns the path of a built file, compressed with gzip. Undefined if the page is not built. */
export function findPageFile(name: string): string | undefined {
  return FOLDERS.map((folder) => path.join(folder, `${name}.gz`)).find((each) => existsSync(each));
}

/** Returns the built files by their names, or undefined if the page is not built. */
function readBuiltFiles(folders: readonly string[], mode: PageMode): ReadonlyMap<string, PageFile> | undefined {
  for (const folder of folders) {
    const names = listed(folder);
    if (!names.includes(`${INDEX}.gz`)) continue;
    return new Map(names.map((name) => pageFile(folder, name, mode)));
  }
  return undefined;
}

/** Names of files with slashes, below the folder. Empty if the folder does not exist. */
function listed(folder: string): string[] {
  try {
    return readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.gz'))
      .map((name) => name.split(path.sep).join('/'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

function pageFile(folder: string, packedName: string, mode: PageMode): [string, PageFile] {
  const name = packedName.slice(0, -'.gz'.length);
  const built = readFileSync(path.join(folder, packedName));
  const gzip =
    name === INDEX ? gzipSync(gunzipSync(built).toString().replace('content="write"', `content="${mode}"`)) : built;
  const etag = `"${createHash('sha256').update(gzip).digest('base64url').slice(0, 22)}"`;
  const type = TYPES[path.extname(name)] ?? 'application/octet-stream';
  return [name, { type, etag, gzip, immutable: name.startsWith('assets/') }];
}
