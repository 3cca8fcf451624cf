import { createFetchHandler } from '@connectrpc/connect/protocol';
import { options, render } from 'preact';
import { readShown, writeShown } from '../address_bar.ts';
import { App } from '../app.tsx';
import { connect } from '../connect.ts';
import { addressOfBytes } from '../step/stored.tsx';
import '../style.css';
import './file.css';
import { type Recorded, readRecorded } from './recorded.ts';
import { createFileRouter, stateBytes } from './router.ts';

/**
 * The page in a file: it shows recorded responses and calls no server. The address of the shown view
 * follows `#`.
 */

/** The page calls this address. Nothing is sent: the file answers. */
const NOWHERE = 'http://file.invalid';

void start();

async function start(): Promise<void> {
  const holder = document.getElementById('recorded') as HTMLScriptElement;
  const recorded = readRecorded(await unpacked(holder.text));
  if (readShown() === '') writeShown(holder.dataset.first ?? '/', { replace: true });
  // A file has no workers beside it.
  Reflect.deleteProperty(globalThis, 'SharedWorker');
  Reflect.deleteProperty(globalThis, 'Worker');
  globalThis.fetch = fetchFrom(recorded);
  const addresses = new Map<string, string>();
  options.vnode = (vnode) => {
    const props = vnode.props as Record<string, unknown>;
    for (const name of ['href', 'src']) {
      const to = props[name];
      if (typeof to === 'string' && to.startsWith('/')) props[name] = addressIn(recorded, addresses, to);
    }
  };
  const element = document.getElementById('app') as HTMLElement;
  render(<App api={connect(NOWHERE)} canWrite={false} />, element);
}

/** Returns the bytes of gzip in base64. */
async function unpacked(base64: string): Promise<Uint8Array> {
  const bytes = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

function fetchFrom(recorded: Recorded): typeof fetch {
  const { handlers } = createFileRouter(recorded);
  const byPath = new Map(handlers.map((handler) => [handler.requestPath, createFetchHandler(handler)]));
  return async (input, init) => {
    const url = input instanceof Request ? input.url : String(input);
    const [path = ''] = /\/anabranch\.v1\.\w+\/\w+$/.exec(url) ?? [];
    const handler = byPath.get(path);
    if (handler !== undefined) return handler(new Request(NOWHERE + path, init));
    const bytes = bytesAt(recorded, url)?.bytes;
    return bytes === undefined ? new Response(null, { status: 404 }) : new Response(new Uint8Array(bytes));
  };
}

/** Returns what a link or an image of the page leads to: another view, or bytes. */
function addressIn(recorded: Recorded, addresses: Map<string, string>, to: string): string {
  const known = addresses.get(to);
  if (known !== undefined) return known;
  const found = bytesAt(recorded, to);
  if (found === undefined) return `#${to}`;
  const address = addressOfBytes(new Uint8Array(found.bytes), found.mediaType);
  addresses.set(to, address);
  return address;
}

function bytesAt(
  recorded: Recorded,
  url: string,
): { readonly bytes: Uint8Array; readonly mediaType: string } | undefined {
  const [, digest, query = ''] = /\/states\/(\w{64})(?:\?(.*))?$/.exec(url) ?? [];
  const [, trajectoryId = '', stepNumber, name] =
    /\/trajectories\/([^/]+)\/steps\/(\d+)\/states\/([^/]+)$/.exec(url) ?? [];
  if (digest !== undefined) {
    const bytes = recorded.blobs.get(digest);
    return bytes === undefined ? undefined : { bytes, mediaType: new URLSearchParams(query).get('media_type') ?? '' };
  }
  if (stepNumber === undefined || name === undefined) return undefined;
  const reference = { trajectoryId, stepNumber: BigInt(stepNumber), name: decodeURIComponent(name) };
  const bytes = stateBytes(recorded, reference);
  return bytes === undefined ? undefined : { bytes, mediaType: '' };
}
