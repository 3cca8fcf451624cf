/** One change of a JSON document. */
export interface Change {
  /** JSON Pointer (RFC 6901). */
  readonly path: string;
  readonly kind: 'add' | 'remove' | 'replace';
  readonly before: unknown;
  readonly after: unknown;
}

export interface Operation {
  readonly op: string;
  readonly path: string;
  readonly value?: unknown;
}

/**
 * Returns the changes of a JSON Patch (RFC 6902) with the values before it. Paths of a patch refer to the document as
 * the operations before them have left it, so a copy is changed along. Operations other than add, remove and replace
 * are left out: `createPatch` returns none.
 */
export function changesOf(before: unknown, patch: readonly Operation[]): Change[] {
  const root = { '': structuredClone(before) };
  const changes: Change[] = [];
  for (const { op, path, value } of patch) {
    const keys = [
      '',
      ...path
        .split('/')
        .slice(1)
        .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~')),
    ];
    const key = keys.pop() ?? '';
    let holder: unknown = root;
    for (const each of keys) holder = (holder as Record<string, unknown> | undefined)?.[each];
    if (typeof holder !== 'object' || holder === null) continue;
    const old = (holder as Record<string, unknown>)[key];
    if (op !== 'add' && op !== 'remove' && op !== 'replace') continue;
    const inserted = op === 'add' && Array.isArray(holder);
    changes.push({ path, kind: op, before: inserted ? undefined : old, after: value });
    apply(holder, key, op, value);
  }
  return changes;
}

function apply(holder: object, key: string, op: 'add' | 'remove' | 'replace', value: unknown): void {
  if (!Array.isArray(holder)) {
    if (op === 'remove') delete (holder as Record<string, unknown>)[key];
    else Object.defineProperty(holder, key, { value, configurable: true, enumerable: true, writable: true });
    return;
  }
  const at = key === '-' ? holder.length : Number(key);
  if (op === 'add') holder.splice(at, 0, value);
  else if (op === 'remove') holder.splice(at, 1);
  else holder[at] = value;
}

/** A stretch of text that two texts share, or that only one of them has. */
export interface Part {
  readonly text: string;
  readonly in: 'both' | 'before' | 'after';
}

/** Texts with more words are not compared word by word. */
const MOST_WORDS = 600;

/** Compares two texts word by word. Long texts are compared by their common beginning and end. */
export function compareWords(before: string, after: string): Part[] {
  const [a, b] = [wordsOf(before), wordsOf(after)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const [left, right] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const middle = left.length > MOST_WORDS || right.length > MOST_WORDS ? replaced(left, right) : aligned(left, right);
  return joined([
    { text: a.slice(0, start).join(''), in: 'both' },
    ...middle,
    { text: a.slice(a.length - end).join(''), in: 'both' },
  ]);
}

function wordsOf(text: string): string[] {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
}

function replaced(left: readonly string[], right: readonly string[]): Part[] {
  return [
    { text: left.join(''), in: 'before' },
    { text: right.join(''), in: 'after' },
  ];
}

/** Aligns words by their longest common subsequence. */
function aligned(left: readonly string[], right: readonly string[]): Part[] {
  const width = right.length + 1;
  const common = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      const [down, across] = [common[(i + 1) * width + j] ?? 0, common[i * width + j + 1] ?? 0];
      common[i * width + j] =
        left[i] === right[j] ? (common[(i + 1) * width + j + 1] ?? 0) + 1 : Math.max(down, across);
    }
  }
  const parts: Part[] = [];
  for (let i = 0, j = 0; i < left.length || j < right.length; ) {
    const [word = '', other = ''] = [left[i], right[j]];
    if (i < left.length && j < right.length && word === other) {
      parts.push({ text: word, in: 'both' });
      i += 1;
      j += 1;
    } else if (
      j >= right.length ||
      (i < left.length && (common[(i + 1) * width + j] ?? 0) >= (common[i * width + j + 1] ?? 0))
    ) {
      parts.push({ text: word, in: 'before' });
      i += 1;
    } else {
      parts.push({ text: other, in: 'after' });
      j += 1;
    }
  }
  return parts;
}

function joined(parts: readonly Part[]): Part[] {
  const found: Part[] = [];
  for (const part of parts) {
    const last = found.at(-1);
    if (part.text === '') continue;
    if (last?.in === part.in) found[found.length - 1] = { text: last.text + part.text, in: part.in };
    else found.push(part);
  }
  return found;
}
