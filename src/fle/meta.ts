/** The parts of `meta` that the import uses. */
export interface Meta {
  readonly taskKey: string | undefined;
  readonly processId: string | undefined;
  readonly errorOccurred: boolean;
}

/**
 * Matches strings, which stay unchanged, and Python's spellings of numbers that JSON does not allow, which become null.
 */
const NOT_JSON = /"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b/gsu;

/** Reads `meta`. Text that is not a JSON object has no parts. */
export function readMeta(text: string | undefined): Meta {
  const meta = objectOf(text ?? '');
  return {
    taskKey: nameOf(meta.task_key),
    processId: nameOf(meta.process_id),
    errorOccurred: meta.error_occurred === true,
  };
}

function objectOf(text: string): Readonly<Record<string, unknown>> {
  const value = parse(text) ?? parse(text.replace(NOT_JSON, (part) => (part.startsWith('"') ? part : 'null')));
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function nameOf(value: unknown): string | undefined {
  return typeof value === 'string' || typeof value === 'number' ? String(value) : undefined;
}
