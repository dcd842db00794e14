#!/bin/sh
# Draws docs/pictures/*.dot (needs Graphviz). Lines and words take the colour of what is around them,
# light or dark.
style='svg { color: #222 } @media (prefers-color-scheme: dark) { svg { color: #ddd } }'
cd "$(dirname "$0")/../pictures" || exit
for source in *.dot; do
    dot -Tsvg "$source" | sed -E -e '/^<!--/d' -e '/^ -->/d' -e '/^ Pages:/d' \
        -e 's/stroke="black"/stroke="currentColor"/g' -e 's/fill="black"/fill="currentColor"/g' \
        -e 's/<text /<text fill="currentColor" /' \
        -e "s/^<g id=\"graph0\"/<style>$style<\/style>\n&/" >"${source%.dot}.svg"
done
