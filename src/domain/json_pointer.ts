/** JSON Pointers (RFC 6901) name a value in a JSON text by the keys and indexes that lead to it. */

const POINTER = /^(?:\/(?:[^~/]|~[01])*)*$/u;

/**
 * Returns the keys and indexes of a pointer, outermost first. Returns undefined if the text is not a JSON Pointer. The
 * pointer `''` has no parts: it names the whole value.
 */
export function parsePointer(text: string): string[] | undefined {
  if (!POINTER.test(text)) return undefined;
  const tokens = text.split('/').slice(1);
  return tokens.map((token) => token.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/** Returns the part of a pointer that names a key or an index, including its slash. */
export function pointerPart(part: string | number): string {
  return `/${String(part).replaceAll('~', '~0').replaceAll('/', '~1')}`;
}
