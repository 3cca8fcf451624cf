import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { gunzipSync, gzipSync } from 'node:zlib';
import type { HttpRequest, HttpResponse, RequestHead } from './listen/http.ts';
import type { UnsentMessages } from './listen/unsent.ts';

/** Serves the page for browsers: the files that `page/build.ts` has compressed, by their paths. */

/** `read`: the page hides operations. RPCs stay open to every client. */
export type PageMode = 'read' | 'write';

interface PageFile {
  readonly type: string;
  readonly etag: string;
  readonly gzip: Buffer;
  /** Unpacks the file at its first use. All responses share the bytes. */
  readonly plain: () => Buffer;
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
  'content-security-policy':
    "default-src 'self'; img-src 'self' blob:; media-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'cross-origin-opener-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
} as const;

const NOT_BUILT = `The page of this server is not built. To build it, run in the folder of Anabranch:

  npm install && npm run build:page

Then load this address again. RPCs work without the page.
`;

/**
 * Returns a function that serves requests for the page, and returns false for other paths and methods. `unsent` is
 * shared with all other responses of the same connections.
 */
export function servePage(
  mode: PageMode,
  unsent: UnsentMessages,
  folders: readonly string[] = FOLDERS,
): (request: HttpRequest, response: HttpResponse) => boolean {
  let files: ReadonlyMap<string, PageFile> | undefined;
  return (request, response) => {
    const name = nameIn(request);
    if (name === undefined) return false;
    // Read at the first request. Until the page is built, every request checks again.
    files ??= readBuiltFiles(folders, mode);
    const file = files?.get(name);
    if (file !== undefined) {
      sendFile(request, response, file, unsent);
    } else if (name === INDEX) {
      begin(response, 404, { 'content-type': 'text/plain', 'cache-control': 'no-store' });
      response.end(NOT_BUILT);
    } else {
      return false;
    }
    return true;
  };
}

/** Returns whether a request is for the page, which other sites may link to: it has no data of the server. */
export function isPage(request: RequestHead): boolean {
  return nameIn(request) !== undefined;
}

/** Returns the name of the file that a request is for. Undefined: it is not for the page. */
function nameIn({ method, url = '' }: RequestHead): string | undefined {
  if (method !== 'GET' && method !== 'HEAD') return undefined;
  const [wanted = ''] = url.split('?', 1);
  const name = VIEW.test(wanted) ? INDEX : wanted === '/docs' ? 'docs.html' : wanted.slice(1);
  return name === INDEX || FILE.test(name) ? name : undefined;
}

function sendFile(
  { method, headers }: HttpRequest,
  response: HttpResponse,
  file: PageFile,
  unsent: UnsentMessages,
): void {
  const { type, etag, immutable } = file;
  const common = {
    etag,
    vary: 'accept-encoding',
    'cache-control': immutable ? 'public, max-age=31536000, immutable' : 'no-cache',
  };
  if (headers['if-none-match']?.includes(etag)) {
    begin(response, 304, common);
    response.end();
    return;
  }
  const packed = /\bgzip\b/.test(String(headers['accept-encoding'] ?? ''));
  const bytes = packed ? file.gzip : file.plain();
  const encoding = packed ? { 'content-encoding': 'gzip' } : {};
  begin(response, 200, { ...common, ...encoding, 'content-type': type, 'content-length': `${bytes.length}` });
  if (method === 'HEAD') response.end();
  else void unsent.end(response, bytes);
}

function begin(response: HttpResponse, status: number, headers: Readonly<Record<string, string>>): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries({ ...SAFE, ...headers })) response.setHeader(name, value);
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
  let unpacked: Buffer | undefined;
  const plain = () => {
    unpacked ??= gunzipSync(gzip);
    return unpacked;
  };
  return [name, { type, etag, gzip, plain, immutable: name.startsWith('assets/') }];
}
