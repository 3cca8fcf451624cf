import type http from 'node:http';
import type http2 from 'node:http2';

/** A request of either protocol. */
export type HttpRequest = http.IncomingMessage | http2.Http2ServerRequest;
/** A response of either protocol. */
export type HttpResponse = http.ServerResponse | http2.Http2ServerResponse;
