/** The parts of `meta` that the import uses. */
export interface Meta {
  readonly taskKey: string | undefined;
  readonly processId: string | undefined;
  readonly errorOccurred: boolean;
}

/** Texts stay as they are; what Python writes for numbers that JSON does not have becomes null. */
const NOT_JSON = /"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b/gsu;

/** Reads `meta`; whatever is not a JSON object has none of these parts. */
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
