package dataset_test

import (
	"os"
	"testing"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/dataset/formattest"
)

func TestFoldersOfVideosAndAudioKeepTheLaws(t *testing.T) {
	for name, s := range map[string]formattest.Set{
		"videos by class": {
			Files:  map[string][]byte{"run/b.mp4": []byte("1"), "run/a.MKV": []byte("2"), "jump/c.webm": []byte("3"), "jump/notes.txt": nil, "jump/c.wav": []byte("a track of its own")},
			Format: dataset.FormatVideoFolder,
			Rows:   []formattest.Row{{"webm": "3", "cls": "0", "class": "jump"}, {"mkv": "2", "cls": "1", "class": "run"}, {"mp4": "1", "cls": "1", "class": "run"}},
		},
		"audio without classes": {
			Files:  map[string][]byte{"a.wav": []byte("1"), "b.flac": []byte("2"), "c.mp3": []byte("3"), "metadata.csv": []byte("file_name,text")},
			Format: dataset.FormatAudioFolder,
			Rows:   []formattest.Row{{"wav": "1"}, {"flac": "2"}, {"mp3": "3"}},
		},
		"images with films of themselves": {
			Files:  map[string][]byte{"x/a.png": []byte("1"), "x/a.mp4": []byte("2"), "y/b.jpg": []byte("3"), "making-of/c.mov": nil},
			Format: dataset.FormatFolder,
			Rows:   []formattest.Row{{"png": "1", "cls": "0", "class": "x"}, {"jpg": "3", "cls": "1", "class": "y"}},
		},
	} {
		t.Run(name, func(t *testing.T) { formattest.Check(t, os.Getenv("MILLRACE_S3_SERVERS"), s) })
	}
}

// A file that comes to a folder of videos is found out when what is known of the folder is looked up again.
func TestAFolderOfVideosThatGrewIsAnotherDataset(t *testing.T) {
	dir := t.TempDir()
	datasettest.WriteFile(t, dir, "a.mp4", []byte("1"))
	before, err := build(t, files(t), dataset.BuildOptions{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	datasettest.WriteFile(t, dir, "b.mp4", []byte("2"))
	after, err := build(t, files(t), dataset.BuildOptions{}, dir)
	if err != nil || after.NumSamples() != 2 || before.ID() == after.ID() {
		t.Errorf("%v; want 2 samples under another id", err)
	}
}
