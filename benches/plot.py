"""Horizontal bars on a log scale as an SVG that reads on light and on dark pages."""
import math

STYLE = """<style>
  text { fill: #1f2937; font: 13px system-ui, sans-serif } .small { font-size: 11px; fill: #6b7280 } .title { font-weight: 600 }
  .ours { fill: #c2410c } .peer { fill: #64748b } line { stroke: #d1d5db } .paper { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb } .small { fill: #9ca3af } .ours { fill: #fb923c } .peer { fill: #94a3b8 } line { stroke: #374151 } .paper { fill: #0d1117 }
  }
</style>"""
LEFT, WIDTH, ROW, TOP = 170, 430, 28, 44


def bars(path, title, shown, ours):
    """`shown`: name, seconds, MiB. Shorter is better."""
    low = 10 ** math.floor(math.log10(min(seconds for _, seconds, _ in shown)))
    high = 10 ** math.ceil(math.log10(max(seconds for _, seconds, _ in shown)))
    at = lambda seconds: LEFT + WIDTH * math.log(seconds / low) / math.log(high / low)
    bottom = TOP + ROW * len(shown)
    parts = [f'<text class="title" x="12" y="24">{title}</text>']
    tick = low
    while tick <= high * 1.01:
        parts.append(f'<line x1="{at(tick):.1f}" y1="{TOP - 6}" x2="{at(tick):.1f}" y2="{bottom}"/>'
                     f'<text class="small" x="{at(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g} s</text>')
        tick *= 10
    for i, (name, seconds, mebibytes) in enumerate(shown):
        y, kind = TOP + ROW * i, "ours" if name.startswith(ours) else "peer"
        parts.append(f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{name}</text>'
                     f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{max(2, at(seconds) - LEFT):.1f}" height="20" rx="2"/>'
                     f'<text x="{at(seconds) + 8:.1f}" y="{y + 15}">{seconds:.2f} s, {mebibytes:,.0f} MiB</text>')
    width, height = LEFT + WIDTH + 170, bottom + 26
    with open(path, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
                f'aria-label="{title}">\n{STYLE}\n<rect class="paper" width="{width}" height="{height}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n")
