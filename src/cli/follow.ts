/** Shows what a watch receives: a picture on a terminal, lines elsewhere, JSON for scripts. */
import { columnsOf, cut, type Paint, paintFor, printable } from './columns.ts';
import type { CliContext, Output } from './context.ts';
import { write } from './server_access.ts';

interface WatchDisplay<Picture> {
  show(picture: Picture): Promise<void>;
  /** Called when the connection is lost. The client reconnects, and may call this several times. */
  cut(error: unknown): Promise<void>;
}

/** How a picture of a watch is shown. */
export interface Forms<Picture> {
  /** What changed, as one JSON text. Undefined: nothing. */
  json(picture: Picture): string | undefined;
  /**
   * What changed, as lines by the name of what they are about, for pipes. A line is printed again only if it differs;
   * what is beside it does not count.
   */
  changes(picture: Picture, paint: Paint): readonly (readonly [id: string, line: string, beside?: string])[];
  /** The whole picture, for terminals. */
  screen(picture: Picture, options: { readonly columns: number; readonly paint: Paint }): readonly string[];
}

/** Called for each lost connection that is retried. */
type OnCut = (error: unknown) => void;

/** Shows each picture of a watch. Returns the last one at its end, or when the command is interrupted. */
export async function follow<Picture>(
  cli: CliContext,
  json: boolean,
  watch: (onCut: OnCut) => AsyncIterable<Picture>,
  forms: Forms<Picture>,
): Promise<Picture | undefined> {
  const display = displayFor(cli, json, forms);
  let last: Picture | undefined;
  try {
    for await (const picture of watch((error) => void display.cut(error))) {
      last = picture;
      await display.show(picture);
    }
  } catch (error) {
    if (!cli.signal.aborted) throw error; // Ctrl-C is the normal end of following
  }
  return last;
}

const DEFAULT_ROWS = 24;

function displayFor<Picture>(cli: CliContext, json: boolean, forms: Forms<Picture>): WatchDisplay<Picture> {
  const { stdout, stderr, env } = cli;
  const paint = paintFor(stdout, env);
  if (!json && stdout.isTTY === true && env.TERM !== 'dumb') {
    // A picture that is higher than the terminal cannot be redrawn in place.
    const most = () => Math.max(3, (stdout.rows ?? DEFAULT_ROWS) - 2);
    const screen = redrawing(stdout, () => columnsOf(cli), paint);
    return {
      show: (picture) => screen.show(cropped(forms.screen(picture, { columns: columnsOf(cli), paint }), most())),
      cut: screen.cut,
    };
  }
  const notice = cutNotice(stderr);
  const printed = new Map<string, string>();
  return {
    async show(picture) {
      notice.over();
      const text = json ? forms.json(picture) : undefined;
      if (text !== undefined) await write(stdout, `${text}\n`);
      if (json) return;
      for (const [id, line, beside = ''] of forms.changes(picture, paint)) {
        if (printed.get(id) === line) continue;
        printed.set(id, line);
        await write(stdout, `${line}${beside}\n`);
      }
    },
    cut: notice.cut,
  };
}

function cropped(lines: readonly string[], most: number): readonly string[] {
  if (lines.length <= most) return lines;
  const shown = lines.slice(0, most - 1);
  return [...shown, `… ${lines.length - shown.length} more`];
}

const UP_AND_CLEAR = (lines: number) => `\u001b[${lines}A\u001b[0J`;

/** Draws lines and redraws them in place. The lines must fit the terminal. A lost connection is named below them. */
function redrawing(output: Output, columns: () => number, paint: Paint): WatchDisplay<readonly string[]> {
  let shown: readonly string[] = [];
  let drawn = 0;
  const draw = async (lines: readonly string[]) => {
    const clear = drawn === 0 ? '' : UP_AND_CLEAR(drawn);
    drawn = lines.length;
    await write(output, `${clear}${lines.join('\n')}\n`);
  };
  return {
    show(lines) {
      shown = lines;
      return draw(lines);
    },
    cut: (error) => draw([...shown, paint.yellow(cut(printable(cutText(error)), columns()))]),
  };
}

/** Reports a lost connection once, not once per retry. */
function cutNotice(errors: Output): { cut(error: unknown): Promise<void>; over(): void } {
  let reported = false;
  return {
    async cut(error) {
      if (!reported) await write(errors, `${cutText(error)}\n`);
      reported = true;
    },
    over() {
      reported = false;
    },
  };
}

function cutText(error: unknown): string {
  return `The connection was lost; reconnecting. (${error instanceof Error ? error.message : error})`;
}
