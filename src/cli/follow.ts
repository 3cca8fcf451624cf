/** Shows a list or a tree while it changes, until Ctrl-C. */
import { columnsOf, type Paint, paintFor } from './columns.ts';
import type { CliContext } from './context.ts';
import { write } from './server_access.ts';
import { cutNotice, redrawing, type WatchDisplay } from './watch_display.ts';

/** How a picture of a watch is shown. */
export interface Forms<Picture> {
  /** What changed, as one JSON text. Undefined: nothing. */
  json(picture: Picture): string | undefined;
  /**
   * What changed, as lines by the name of what they are about, for pipes. A line is printed again only if it differs.
   */
  changes(picture: Picture): readonly (readonly [id: string, line: string])[];
  /** The whole picture, for terminals. */
  screen(picture: Picture, options: { readonly columns: number; readonly paint: Paint }): readonly string[];
}

/** Called for each lost connection that is retried. */
export type OnCut = (error: unknown) => void;

/** Shows each picture of a watch. Returns when the command is interrupted. */
export async function follow<Picture>(
  cli: CliContext,
  json: boolean,
  watch: (onCut: OnCut) => AsyncIterable<Picture>,
  forms: Forms<Picture>,
): Promise<void> {
  const display = displayFor(cli, json, forms);
  try {
    for await (const picture of watch((error) => void display.cut(error))) await display.show(picture);
  } catch (error) {
    if (cli.signal.aborted) return; // Ctrl-C is the normal end of following
    throw error;
  }
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
      for (const [id, line] of forms.changes(picture)) {
        if (printed.get(id) === line) continue;
        printed.set(id, line);
        await write(stdout, `${line}\n`);
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
