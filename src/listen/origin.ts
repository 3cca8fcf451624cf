import { isIPv4 } from 'node:net';
import type { HttpRequest, HttpResponse, RequestHead } from './http.ts';

export interface Refusal {
  readonly status: number;
  readonly text: string;
}

/** Response headers that a page of an allowed origin may read. A gRPC-Web client finds the status of a call in them. */
const EXPOSED_HEADERS = 'grpc-status, grpc-message, grpc-status-details-bin, x-request-id';
const PREFLIGHT_SECONDS = 7200;

/** What browsers say of requests that a page of the same origin, or the user, has caused (Fetch Metadata). */
const OWN_SITES: ReadonlySet<string> = new Set(['same-origin', 'none']);

/**
 * Rejects web pages that the operator has not allowed. A page can reach a server on loopback in two ways. It can use a
 * name of its own (DNS rebinding), which shows in the Host of its requests. Or it can send a request to another origin,
 * which shows in the Origin, or in Sec-Fetch-Site if the page cannot read the answer, as with an image.
 */
export class OriginGuard {
  readonly #hosts: ReadonlySet<string> | undefined;
  readonly #origins: ReadonlySet<string>;
  readonly #isPage: (request: RequestHead) => boolean;
  readonly #scheme: 'http' | 'https';

  /**
   * `hosts`: names that are answered in addition to those of loopback. Undefined: any name is answered. `isPage`: what
   * pages of other sites may link to. `scheme`: that of the server's own origin.
   */
  constructor(
    hosts: readonly string[] | undefined,
    origins: readonly string[],
    isPage: (request: RequestHead) => boolean = () => false,
    scheme: 'http' | 'https' = 'http',
  ) {
    this.#hosts = hosts === undefined ? undefined : new Set(hosts);
    this.#origins = new Set(origins);
    this.#isPage = isPage;
    this.#scheme = scheme;
  }

  /** Returns the refusal of the request, or undefined if it may be served. */
  refusalOf(request: RequestHead, authority: string | undefined): Refusal | undefined {
    const host = this.#foreignHost(request);
    if (host !== undefined) {
      return {
        status: 421,
        text: `The Host of the request is "${host.slice(0, 300)}": this server answers only to localhost, 127.0.0.1, [::1] and the names of --allowed-host.\n`,
      };
    }
    const { origin, 'sec-fetch-site': site } = request.headers;
    if (origin !== undefined && this.#origins.has(origin)) return undefined;
    const own = `${this.#scheme}://${authority}`;
    if (origin !== undefined && origin !== own) return refusal('Origin', origin, own);
    if (site === undefined || OWN_SITES.has(String(site)) || this.#isPage(request)) return undefined;
    return refusal('Sec-Fetch-Site', String(site), own);
  }

  /**
   * Lets pages of an allowed origin read the answer (CORS). Returns true if the request was a preflight, which is
   * answered then.
   */
  applyCors(request: HttpRequest, response: HttpResponse): boolean {
    if (this.#origins.size === 0) return false;
    response.setHeader('vary', 'Origin');
    const { origin, ...headers } = request.headers;
    if (origin === undefined || !this.#origins.has(origin)) return false;
    response.setHeader('access-control-allow-origin', origin);
    response.setHeader('cross-origin-resource-policy', 'cross-origin');
    response.setHeader('access-control-expose-headers', EXPOSED_HEADERS);
    if (request.method !== 'OPTIONS' || headers['access-control-request-method'] === undefined) return false;
    response.setHeader('access-control-allow-methods', 'GET, POST');
    const wanted = headers['access-control-request-headers'];
    if (wanted !== undefined) response.setHeader('access-control-allow-headers', wanted);
    response.setHeader('access-control-max-age', PREFLIGHT_SECONDS);
    response.statusCode = 204;
    response.end();
    return true;
  }

  #foreignHost(request: RequestHead): string | undefined {
    const hosts = this.#hosts;
    if (hosts === undefined) return undefined;
    return authoritiesOf(request).find((authority) => {
      const name = nameIn(authority);
      return name === undefined || !(isLoopbackName(name) || hosts.has(name));
    });
  }
}

function refusal(header: string, value: string, own: string): Refusal {
  return {
    status: 403,
    text: `The ${header} of the request is "${value.slice(0, 300)}": this server answers only to pages of ${own} and of the origins of --allowed-origin.\n`,
  };
}

/** Returns all addresses in a request: Host (possibly twice), :authority, and the target if it is an absolute URL. */
function authoritiesOf({ rawHeaders, url = '' }: RequestHead): string[] {
  const found = rawHeaders.filter((_, i) => i % 2 === 1 && /^(?:host|:authority)$/i.test(rawHeaders[i - 1] ?? ''));
  const target = /^[^/]*:\/\/([^/?#]*)/.exec(url)?.[1];
  return [...found, target ?? ''].filter((authority) => authority !== '');
}

/** Returns the host of an authority in the form that URL uses, without a trailing dot. */
function nameIn(authority: string): string | undefined {
  return URL.parse(`http://${authority}`)?.hostname.replace(/\.$/, '');
}

function isLoopbackName(name: string): boolean {
  if (name === 'localhost' || name.endsWith('.localhost') || name === '[::1]') return true;
  return isIPv4(name) && name.startsWith('127.');
}
