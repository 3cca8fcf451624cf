import type { Interceptor } from '@connectrpc/connect';

/** Sends these headers with each call. */
export function withHeaders(headers: Readonly<Record<string, string>>): Interceptor {
  return (next) => (request) => {
    for (const [name, value] of Object.entries(headers)) request.header.set(name, value);
    return next(request);
  };
}
