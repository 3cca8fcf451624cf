/** A point or a stroke on an image, in its pixels. */
export type Stroke = readonly (readonly [x: number, y: number])[];

/**
 * Returns where an action points on a screenshot: a click is one point, a drag is several. Understands `x` and `y`,
 * `coordinate`, `start_coordinate`, `start_x` and `end_x` (in camel case too), and `path`. Undefined if it points
 * nowhere.
 */
export function strokeOf(json: string): Stroke | undefined {
  let action: unknown;
  try {
    action = JSON.parse(json);
  } catch {
    return undefined;
  }
  for (const part of [
    action,
    inner(action, 'action'),
    inner(action, 'arguments'),
    inner(action, 'args'),
    inner(action, 'input'),
  ]) {
    const found = strokeIn(part);
    if (found !== undefined) return found;
  }
  return undefined;
}

function strokeIn(part: unknown): Stroke | undefined {
  const path = inner(part, 'path');
  const points = Array.isArray(path)
    ? path.map(pointOf)
    : [
        pair(inner(part, 'start_x') ?? inner(part, 'startX'), inner(part, 'start_y') ?? inner(part, 'startY')) ??
          pointOf(inner(part, 'start_coordinate')),
        pair(inner(part, 'x'), inner(part, 'y')) ?? pointOf(inner(part, 'coordinate')),
        pair(inner(part, 'end_x') ?? inner(part, 'endX'), inner(part, 'end_y') ?? inner(part, 'endY')) ??
          pointOf(inner(part, 'end_coordinate')),
      ];
  const found = points.filter((point) => point !== undefined);
  return found.length === 0 ? undefined : found;
}

function pointOf(value: unknown): readonly [number, number] | undefined {
  return Array.isArray(value) ? pair(value[0], value[1]) : pair(inner(value, 'x'), inner(value, 'y'));
}

function pair(x: unknown, y: unknown): readonly [number, number] | undefined {
  return typeof x === 'number' && typeof y === 'number' && Number.isFinite(x) && Number.isFinite(y)
    ? [x, y]
    : undefined;
}

function inner(value: unknown, key: string): unknown {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    ? (value as Record<string, unknown>)[key]
    : undefined;
}
