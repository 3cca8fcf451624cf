import http from 'node:http';
import https from 'node:https';

export interface FetchOptions {
  /** Certificates of authorities to trust, in PEM format. Undefined: those of Node. */
  readonly ca: string | undefined;
  /** Undefined: none is sent. */
  readonly token: string | undefined;
  /** For the whole answer. */
  readonly timeoutMs: number;
  readonly stopped: AbortSignal;
}

const MOST_BYTES = 1024 * 1024;

/** Returns the body of a response of at most 1 MiB. Follows no redirect. Throws an error that says what is wrong. */
export function fetchText(url: URL, { ca, token, timeoutMs, stopped }: FetchOptions): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const fail = (what: string) => reject(new Error(`${url.origin}${url.pathname} ${what}`));
  const headers = { accept: 'application/json', ...(token !== undefined && { authorization: `Bearer ${token}` }) };
  const signal = AbortSignal.any([AbortSignal.timeout(timeoutMs), stopped]);
  const options = { headers, agent: false, signal, ...(ca !== undefined && { ca }) };
  const get = url.protocol === 'https:' ? https.get : (http.get as typeof https.get);
  const request = get(url, options, (response) => {
    const { statusCode } = response;
    const pieces: Buffer[] = [];
    let bytes = 0;
    if (statusCode !== 200) {
      fail(`answered with the status ${statusCode}`);
      request.destroy();
    }
    response.on('data', (piece: Buffer) => {
      bytes += piece.length;
      pieces.push(piece);
      if (bytes <= MOST_BYTES) return;
      fail(`sent more than ${MOST_BYTES} bytes`);
      request.destroy();
    });
    response.once('end', () => resolve(Buffer.concat(pieces).toString('utf8')));
    response.on('error', failed);
  });
  function failed(error: NodeJS.ErrnoException): void {
    if (signal.aborted) fail(`did not answer within ${timeoutMs} ms`);
    else fail(`could not be asked (${error.code ?? 'connection lost'})`);
  }
  request.on('error', failed);
  return promise;
}
