import { type AnabranchError, invalidField } from './errors.ts';

/** W11: what both engines can keep as text: no U+0000, and no half of a surrogate pair. */
export function isStorableText(text: string): boolean {
  return !text.includes('\0') && text.isWellFormed();
}

export function requireText(text: string, field: string): string {
  if (!isStorableText(text)) throw unstorableText(field);
  return text;
}

export function unstorableText(field: string): AnabranchError {
  return invalidField(
    field,
    'must be text without U+0000 and without lone surrogates: send such content as bytes (data)',
  );
}

/** Strict JSON text; kept as it is. Empty means none. */
export function requireJson(text: string, field: string): string {
  if (text === '') return text;
  const fault = jsonFault(text);
  if (fault !== undefined) throw invalidField(field, fault);
  return text;
}

/** What is wrong with a JSON text; undefined if nothing. */
export function jsonFault(text: string): string | undefined {
  if (!isStorableText(text)) return 'must be JSON text without U+0000 and without lone surrogates';
  try {
    JSON.parse(text);
    return undefined;
  } catch (error) {
    const why = error instanceof SyntaxError ? error.message : 'it cannot be read';
    return `must be strict JSON text: ${why.replace(/[\p{Cc}\p{Cf}]/gu, '?').slice(0, 160)}`;
  }
}

/** Whether the text has at most so many bytes as UTF-8; counts only where the length leaves a doubt. */
export function fitsBytes(text: string, bytes: number): boolean {
  return text.length * 3 <= bytes || Buffer.byteLength(text) <= bytes;
}
