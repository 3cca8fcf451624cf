const LOCAL: ReadonlySet<string> = new Set(['localhost', '127.0.0.1', '[::1]']);

/** Returns a URL that may be fetched: over TLS or from this machine, and without a password. Undefined: it may not. */
export function fetchableUrl(text: string): URL | undefined {
  const url = URL.parse(text);
  if (url === null || url.username !== '' || url.password !== '') return undefined;
  return url.protocol === 'https:' || (url.protocol === 'http:' && LOCAL.has(url.hostname)) ? url : undefined;
}
